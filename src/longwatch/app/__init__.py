"""The only wiring: builds the objects of the other layers and hands them to each other."""
