"""Benchmarks: `python -m benchmarks [name...]`.

One file `bench_<name>.py` a benchmark. It says what it measures and who takes part:

    TITLE: str                                        one line
    def prepare(directory: Path) -> Path              makes the input once, below `directory`; gives its path
    CONTESTANTS: dict[str, Callable[[], Run]]         by name; each imports what it needs and gives the measured call
    Run = Callable[[Path], object]                    does the work on the input; every run must give an equal result

Optional:

    WARM_UPS: int                                     calls before the one that counts, in the same process
    MOST_ROUNDS: int                                  where a round takes long
    ROUNDS: Mapping[str, int]                         of contestants that take long: no more rounds than this
    RESULTS_MAY_DIFFER, FLOOR_MAY_DIFFER: bool

A contestant whose name begins with "floor" does the least work that any client must do; the others are told as a
multiple of the first such one, round by round.

Every run happens in a process of its own. What is measured is the call: interpreter start and imports are not counted.
"""
