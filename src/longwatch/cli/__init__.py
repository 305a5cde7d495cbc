"""The command line. Nothing here is imported before its command is used."""
