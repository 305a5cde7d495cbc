"""Events become logs (and, later, metrics and pages); nothing else logs a state change."""
