-- One request over and over; the body is in BODY. Prints one line of JSON at the end.
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = os.getenv("BODY")

function done(summary, latency)
  local errors = summary.errors
  print(string.format(
    'figures {"requests":%d,"duration_us":%d,"p50_us":%d,"p99_us":%d,"failed":%d}',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
