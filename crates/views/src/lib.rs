//! Views: text tables, histograms, pictures and JSON of the plain data types.
