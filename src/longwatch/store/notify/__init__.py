"""Notifications inside one machine: local subscriptions and datagrams between processes."""
