-- Questions to the job events in Athena: the table `jobs` of infra/accounting.yaml. Change the month, and the key of the label.
-- An event may come twice, so each query takes each job once. tests/accounting.py runs them.

-- What the jobs of each person cost in a month, and of which share of the policy they were.
select "share", "by", count(*) as jobs, sum(cast(usd as decimal(18, 6))) as usd
from (select distinct job_id, "share", "by", usd from jobs where month = '2027-01')
group by "share", "by" order by usd desc;

-- What the jobs of each team cost: of each value of the label team.
select team, count(*) as jobs, sum(cast(usd as decimal(18, 6))) as usd
from (select distinct job_id, regexp_extract(labels, '(^|,)team=([^,]*)', 2) as team, usd from jobs where month = '2027-01')
group by team order by usd desc;

-- What jobs cost each day, and the CPU time that the last try of each used, in hours.
select substr(finished_at, 1, 10) as day, count(*) as jobs, sum(cast(usd as decimal(18, 6))) as usd,
  sum(cast(nullif(cpu_s, '') as double)) / 3600 as cpu_h
from (select distinct job_id, finished_at, cpu_s, usd from jobs where month = '2027-01')
group by substr(finished_at, 1, 10) order by day;

-- How long the jobs of each person were in the cluster before their last try began, in seconds.
select "by", count(*) as jobs, avg(waited_s) as mean_s, max(waited_s) as longest_s
from (select distinct job_id, "by",
    date_diff('second', from_iso8601_timestamp(submitted_at), from_iso8601_timestamp(started_at)) as waited_s
  from jobs where month = '2027-01' and started_at <> '')
group by "by" order by mean_s desc;

-- What was spent on jobs that did not complete, by name and cause.
select name, cause, count(*) as jobs, sum(cast(usd as decimal(18, 6))) as usd
from (select distinct job_id, name, cause, usd from jobs where month = '2027-01' and state <> 'complete')
group by name, cause order by usd desc limit 20;
