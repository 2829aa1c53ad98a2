"""The platform: an HTTP service with a page, from which every verb of the command line is used.

operations   verbs of the command line as resources: schemas, and the arguments of a command
store        tables of files, jobs, tokens and the audit log; `migrations` makes them
process      the process of one job: started, found again, signalled
jobs         durable jobs: accepted ones are kept, and run one after another
app          the API
pages        the pages, from `templates` and `static`
serving      jobs that answer requests until they are drained; their routes and pages
server       starts and ends all of it
"""
