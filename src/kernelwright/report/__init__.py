"""Reports: the self-contained HTML page (`html.write`) and the terminal tables (`tables.result_table`)."""
