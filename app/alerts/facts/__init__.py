"""Derived facts, one kind a file. Each is a pure function of a `Moment`; its docstring states its rule."""
