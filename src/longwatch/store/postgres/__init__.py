"""PostgreSQL behind the store: connections, transactions, notifications."""
