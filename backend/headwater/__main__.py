"""`python -m headwater`."""

from headwater.cli.main import main

if __name__ == "__main__":
    main()
