"""The wiring: builds the objects of the other layers and connects them."""
