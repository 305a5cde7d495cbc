"""Programs that stay up without restart storms: the exit decision, the life of a program, health checks."""
