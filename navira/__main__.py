from navira.cli import main

main()
