BEGIN TRANSACTION;
CREATE TABLE about (
	"key" VARCHAR NOT NULL, 
	value TEXT NOT NULL, 
	PRIMARY KEY ("key")
);
INSERT INTO "about" VALUES('format','1');
CREATE TABLE alias_changes (
	id INTEGER NOT NULL, 
	owner VARCHAR NOT NULL, 
	name VARCHAR NOT NULL, 
	alias VARCHAR NOT NULL, 
	"before" VARCHAR, 
	"after" VARCHAR, 
	"by" VARCHAR NOT NULL, 
	time FLOAT NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE attempts (
	attempt_id VARCHAR NOT NULL, 
	run_id VARCHAR NOT NULL, 
	attempt INTEGER NOT NULL, 
	owner VARCHAR NOT NULL, 
	token_hash VARCHAR NOT NULL, 
	status VARCHAR NOT NULL, 
	phase VARCHAR NOT NULL, 
	reason TEXT NOT NULL, 
	message TEXT NOT NULL, 
	handle VARCHAR NOT NULL, 
	exit_code INTEGER, 
	failure TEXT, 
	ranks TEXT NOT NULL, 
	live TEXT NOT NULL, 
	cancel TEXT NOT NULL, 
	drained BOOLEAN NOT NULL, 
	discarded BOOLEAN NOT NULL, 
	tracked VARCHAR NOT NULL, 
	created FLOAT NOT NULL, 
	started FLOAT, 
	ended FLOAT, 
	PRIMARY KEY (attempt_id), 
	UNIQUE (token_hash)
);
INSERT INTO "attempts" VALUES('r-finishedfini-1','r-finishedfini',1,'ann','376797dfb2363cb9e60d4bf57cb1e4c6072da014bd67f766fb89aa3c633ac49b','FAILED','ended','rank-failed','boom','local://r-finishedfini-1',1,'{"cell":null,"exception":"","exit_code":null,"file":null,"line":null,"message":"boom","rank":0,"source":"","traceback":""}','[]','{}','',1,0,'',1.79603586324775815015e+09,1.79603586350723600385e+09,1.7960358637344183922e+09);
INSERT INTO "attempts" VALUES('r-finishedfini-2','r-finishedfini',2,'ann','65dd57d59e5a33f0dcf33f0aa2589ce069c735b023d8de1aef2332fa177aa1ec','FINISHED','ended','','','local://r-finishedfini-2',0,NULL,'[]','{}','',1,0,'',1.79603586387137222285e+09,1.7960358639975280762e+09,1.79603586406118845937e+09);
INSERT INTO "attempts" VALUES('r-runningrunni-1','r-runningrunni',1,'ann','cce89b27e10b7d862396f021cf865683bcd156a0116dccedac3738715ad67829','RUNNING','running','','','local://r-runningrunni-1',NULL,NULL,'[{"pid":7,"rank":0,"state":"running"},{"pid":8,"rank":1,"state":"running"}]','{}','',0,0,'',1.79603586413369131083e+09,1.79603586424971127513e+09,NULL);
INSERT INTO "attempts" VALUES('r-waitingwaiti-1','r-waitingwaiti',1,'bob','15bc7bce314863d2b248d7fb59bd8c6894df7bb6c5357d15b389fb04d2672875','WAITING','','','','',NULL,NULL,'[]','{}','',0,0,'',1.79603586431254887579e+09,NULL,NULL);
CREATE TABLE batches (
	batch_id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	run_id VARCHAR NOT NULL, 
	attempt_id VARCHAR NOT NULL, 
	attempt INTEGER NOT NULL, 
	rank INTEGER NOT NULL, 
	process VARCHAR NOT NULL, 
	lines TEXT NOT NULL, 
	folded BOOLEAN NOT NULL, 
	exported BOOLEAN NOT NULL
);
INSERT INTO "batches" VALUES(1,'r-finishedfini','r-finishedfini-1',1,0,'1-1','[{"q":1,"t":1000.0,"k":"m","s":1,"m":{"loss":0.5}}]',0,0);
CREATE TABLE changes (
	id INTEGER NOT NULL, 
	run_id VARCHAR NOT NULL, 
	attempt INTEGER NOT NULL, 
	time FLOAT NOT NULL, 
	status VARCHAR NOT NULL, 
	reason TEXT NOT NULL, 
	message TEXT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "changes" VALUES(1,'r-finishedfini',1,1.79603586324983358381e+09,'WAITING','','');
INSERT INTO "changes" VALUES(2,'r-finishedfini',1,1.79603586353874635698e+09,'STARTING','','');
INSERT INTO "changes" VALUES(3,'r-finishedfini',1,1.79603586381587815279e+09,'FAILED','rank-failed','boom');
INSERT INTO "changes" VALUES(4,'r-finishedfini',2,1.79603586393348336222e+09,'WAITING','','');
INSERT INTO "changes" VALUES(5,'r-finishedfini',2,1.79603586399872779851e+09,'STARTING','','');
INSERT INTO "changes" VALUES(6,'r-finishedfini',2,1.79603586406344580645e+09,'FINISHED','','');
INSERT INTO "changes" VALUES(7,'r-runningrunni',1,1.7960358641341071129e+09,'WAITING','','');
INSERT INTO "changes" VALUES(8,'r-runningrunni',1,1.79603586426877617843e+09,'STARTING','','');
INSERT INTO "changes" VALUES(9,'r-runningrunni',1,1.79603586431031417847e+09,'RUNNING','','');
INSERT INTO "changes" VALUES(10,'r-waitingwaiti',1,1.79603586435049724584e+09,'WAITING','','');
CREATE TABLE cursors (
	attempt_id VARCHAR NOT NULL, 
	rank INTEGER NOT NULL, 
	process VARCHAR NOT NULL, 
	q INTEGER NOT NULL, 
	PRIMARY KEY (attempt_id, rank, process)
);
INSERT INTO "cursors" VALUES('r-finishedfini-1',0,'1-1',1);
CREATE TABLE lease_queue (
	seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	holder VARCHAR NOT NULL, 
	needs TEXT NOT NULL, 
	since FLOAT NOT NULL, 
	UNIQUE (holder)
);
INSERT INTO "lease_queue" VALUES(4,'r-waitingwaiti-1','{"slots": 1}',1.79603586435137104991e+09);
CREATE TABLE leases (
	item VARCHAR NOT NULL, 
	pool VARCHAR NOT NULL, 
	uuid VARCHAR NOT NULL, 
	simulated BOOLEAN NOT NULL, 
	retired BOOLEAN NOT NULL, 
	holder VARCHAR, 
	since FLOAT, 
	PRIMARY KEY (item)
);
INSERT INTO "leases" VALUES('slot-00000','slots','',0,0,'r-runningrunni-1',1.7960358641366121769e+09);
INSERT INTO "leases" VALUES('slot-00001','slots','',0,0,'r-runningrunni-1',1.7960358641366121769e+09);
CREATE TABLE outputs (
	run_id VARCHAR NOT NULL, 
	attempt INTEGER NOT NULL, 
	path VARCHAR NOT NULL, 
	size_bytes INTEGER NOT NULL, 
	sha256 VARCHAR NOT NULL, 
	PRIMARY KEY (run_id, attempt, path)
);
CREATE TABLE runs (
	seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	run_id VARCHAR NOT NULL, 
	promotion_id VARCHAR NOT NULL, 
	owner VARCHAR NOT NULL, 
	name VARCHAR NOT NULL, 
	spec TEXT NOT NULL, 
	snapshot TEXT NOT NULL, 
	attempt INTEGER NOT NULL, 
	status VARCHAR NOT NULL, 
	mlflow_run_id VARCHAR, 
	created FLOAT NOT NULL, 
	UNIQUE (run_id), 
	UNIQUE (promotion_id)
);
INSERT INTO "runs" VALUES(1,'r-finishedfini','p-1','ann','job 工作','{"cwd":".","data":[],"experiment":"","gpus_per_worker":0,"model_name":"","name":"job 工作","notebook":"n.ipynb","parameters":{},"preset":"torchrun","python":"python3","queue":"default","script":"promoted.py","secrets":[],"slice":null,"snapshot_id":"0000000000000000000000000000000000000000000000000000000000000000","tags":{},"workers":1}','{"base_commit":"b","branch":"main","commit":"c","cwd":".","data":[],"dirty":false,"files":[],"id":"0000000000000000000000000000000000000000000000000000000000000000","lock_sha256":"","notebook":"n.ipynb","script":"promoted.py","script_sha256":"","tree":"t"}',2,'FINISHED',NULL,1.79603586319966268538e+09);
INSERT INTO "runs" VALUES(2,'r-runningrunni','p-2','ann','job 工作','{"cwd":".","data":[],"experiment":"","gpus_per_worker":0,"model_name":"","name":"job 工作","notebook":"n.ipynb","parameters":{},"preset":"torchrun","python":"python3","queue":"default","script":"promoted.py","secrets":[],"slice":null,"snapshot_id":"0000000000000000000000000000000000000000000000000000000000000000","tags":{},"workers":2}','{"base_commit":"b","branch":"main","commit":"c","cwd":".","data":[],"dirty":false,"files":[],"id":"0000000000000000000000000000000000000000000000000000000000000000","lock_sha256":"","notebook":"n.ipynb","script":"promoted.py","script_sha256":"","tree":"t"}',1,'RUNNING',NULL,1.79603586413305902486e+09);
INSERT INTO "runs" VALUES(3,'r-waitingwaiti','p-3','bob','job 工作','{"cwd":".","data":[],"experiment":"","gpus_per_worker":0,"model_name":"","name":"job 工作","notebook":"n.ipynb","parameters":{},"preset":"torchrun","python":"python3","queue":"default","script":"promoted.py","secrets":[],"slice":null,"snapshot_id":"0000000000000000000000000000000000000000000000000000000000000000","tags":{},"workers":1}','{"base_commit":"b","branch":"main","commit":"c","cwd":".","data":[],"dirty":false,"files":[],"id":"0000000000000000000000000000000000000000000000000000000000000000","lock_sha256":"","notebook":"n.ipynb","script":"promoted.py","script_sha256":"","tree":"t"}',1,'WAITING',NULL,1.79603586431224131582e+09);
CREATE TABLE series (
	attempt_id VARCHAR NOT NULL, 
	rank INTEGER NOT NULL, 
	"key" VARCHAR NOT NULL, 
	fold BLOB NOT NULL, 
	PRIMARY KEY (attempt_id, rank, "key")
);
CREATE TABLE snapshots (
	owner VARCHAR NOT NULL, 
	snapshot_id VARCHAR NOT NULL, 
	files INTEGER NOT NULL, 
	size_bytes INTEGER NOT NULL, 
	created FLOAT NOT NULL, 
	PRIMARY KEY (owner, snapshot_id)
);
CREATE TABLE versions (
	id INTEGER NOT NULL, 
	owner VARCHAR NOT NULL, 
	run_id VARCHAR NOT NULL, 
	attempt INTEGER NOT NULL, 
	digest VARCHAR NOT NULL, 
	name VARCHAR NOT NULL, 
	files TEXT NOT NULL, 
	meta TEXT NOT NULL, 
	version VARCHAR, 
	tags TEXT NOT NULL, 
	created FLOAT NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (run_id, digest)
);
CREATE INDEX ix_runs_status ON runs (status);
CREATE INDEX ix_runs_owner ON runs (owner);
CREATE INDEX ix_attempts_status ON attempts (status);
CREATE INDEX ix_attempts_run_id ON attempts (run_id);
CREATE INDEX ix_changes_run_id ON changes (run_id);
CREATE INDEX ix_batches_run_id ON batches (run_id);
CREATE INDEX batches_to_do ON batches (exported, folded);
CREATE INDEX ix_versions_owner ON versions (owner);
CREATE INDEX ix_versions_run_id ON versions (run_id);
CREATE INDEX ix_alias_changes_owner ON alias_changes (owner);
CREATE INDEX ix_leases_pool ON leases (pool);
CREATE INDEX ix_leases_holder ON leases (holder);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('runs',3);
INSERT INTO "sqlite_sequence" VALUES('lease_queue',4);
INSERT INTO "sqlite_sequence" VALUES('batches',1);
COMMIT;
