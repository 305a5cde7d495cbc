"""The listener that wakes receivers in a process, and datagrams between local processes."""
