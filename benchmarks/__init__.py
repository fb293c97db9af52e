"""Benchmarks: `python -m benchmarks [name...]`.

One file `bench_<name>.py` a benchmark. It says what it measures and who takes part:

    TITLE: str                                        one line
    def prepare(directory: Path) -> Path              makes the input once, below `directory`; gives its path
    CONTESTANTS: dict[str, Callable[[], Run]]         by name; each imports what it needs and gives the measured call
    Run = Callable[[Path], object]                    does the work on the input; every run must give an equal result

Every run happens in a process of its own. What is measured is the call: interpreter start and imports are not counted.
"""
