"""A fuzzer of everything that reads: damaged logs, checkpoints, deletion vectors, data files and variants.

    python -m tests.harness.fuzz --cases 1000 --seed 7
    python -m tests.harness.fuzz --seed 7 --only 123 --save DIR    # that case again, its input kept

A case takes a healthy input, damages it, and reads it in every way there is. It must end in a right answer or in a
`DeltaError`, within bounded time and memory, without opening a file outside the table that the log does not name by an
absolute path. Where a mutation provably changes nothing, the answer must be the one of the healthy input.

    corpus, own_tables            healthy tables: written here, and any directory of tables given
    byte_mutations, …             what damages them, from bits to well-formed JSON of the wrong meaning
    table_case, input_cases       what a case is: a table on disk, or one input of a pure function
    watched_store                 notices what is opened outside the table
    runner                        worker processes and the watchdog over them
"""
