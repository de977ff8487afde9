"""Subjects that are odd but right, one small object each: no requirement may blame one of them.

A suite that catches every fault could do so by blaming everybody. Each module here holds implementations or backends
with one unusual habit each, and a sentence that says why it is right. Habits are counted where they are lived out::

    adds_in_reverse = odd("adds in reverse", torch, reduce=AddsInReverse)      noticed("adds in reverse")

``tests/conforming/test_no_false_blame.py`` holds the requirements to it, and each subject to its habit.
"""
