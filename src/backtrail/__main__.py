"""`python -m backtrail`: the command line."""

from backtrail.cli.main import main

if __name__ == "__main__":
    main()
