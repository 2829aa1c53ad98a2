CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY);
INSERT INTO alembic_version VALUES ('1');
CREATE TABLE jobs (
    id VARCHAR NOT NULL PRIMARY KEY,
    operation VARCHAR NOT NULL,
    options JSON NOT NULL,
    state VARCHAR NOT NULL,
    owner VARCHAR NOT NULL,
    created_s DOUBLE NOT NULL,
    started_s DOUBLE,
    ended_s DOUBLE,
    cancelled_s DOUBLE,
    attempts INTEGER NOT NULL,
    exit_code INTEGER,
    error JSON,
    summary JSON,
    retry_of VARCHAR
);
CREATE INDEX jobs_by_state ON jobs (state, id);
CREATE INDEX jobs_by_owner ON jobs (owner, id);
CREATE TABLE files (
    id VARCHAR NOT NULL PRIMARY KEY,
    name VARCHAR NOT NULL UNIQUE,
    kind VARCHAR NOT NULL,
    bytes BIGINT NOT NULL,
    sha256 VARCHAR NOT NULL,
    created_s DOUBLE NOT NULL,
    owner VARCHAR NOT NULL,
    job VARCHAR REFERENCES jobs (id),
    output VARCHAR
);
CREATE INDEX files_by_kind ON files (kind, id);
CREATE INDEX files_by_job ON files (job);
CREATE TABLE tokens (
    sha256 VARCHAR NOT NULL PRIMARY KEY,
    name VARCHAR NOT NULL,
    created_s DOUBLE NOT NULL
);
CREATE TABLE audit (
    id INTEGER NOT NULL PRIMARY KEY,
    time_s DOUBLE NOT NULL,
    owner VARCHAR NOT NULL,
    action VARCHAR NOT NULL,
    what VARCHAR NOT NULL
);
