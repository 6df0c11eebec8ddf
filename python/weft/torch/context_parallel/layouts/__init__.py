"""Pure functions: which rank has which tokens and heads, plans of attention, byte formulas. They import no torch."""
