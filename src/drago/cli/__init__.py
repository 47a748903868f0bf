"""The command `drago`: audits, fits, predictions, certificates and reports of files of rows."""
