"""Learning from the Archive: what a Trial is worth, and what is worth reading before the next one."""
