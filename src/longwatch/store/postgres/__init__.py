"""The PostgreSQL database behind the store: connections, transactions, notifications."""
