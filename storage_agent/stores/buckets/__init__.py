"""Objects of S3, GCS and Azure as the files of an export: listed into an index, fetched by a process of their own."""
