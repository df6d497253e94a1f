"""Records to tables, figures and one page. Reads records only: no figure depends on a re-run."""
