"""`python -m longwatch`."""

from longwatch.cli.entry import main

if __name__ == "__main__":
    main()
