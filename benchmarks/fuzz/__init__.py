"""Hostile input for every command: `python -m benchmarks.fuzz`.

A case is a number: with the seed it decides a command, its files and what is wrong with them (one small module for each
class of input: flags, descriptions, tables, questions, corpora, records, weights, vocabularies). judge.py runs a case
and says what a command must never do; worker.py runs many in a process of its own, and runner.py starts workers.
"""
