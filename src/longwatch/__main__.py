"""`python -m longwatch`."""

from longwatch.cli.main import main

if __name__ == "__main__":
    main()
