"""What a notebook shows: tables, live plots, examples. Imported by notebooks only."""
