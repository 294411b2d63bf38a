// Package ucmlog writes the log lines that UCM documents, in its form:
//
//	[2026-11-24 11:05:17.123456][UC][D] Cache task(7,LOAD,64,33554432) dispatching. [4711,4712]
//	[2026-11-24 11:05:17.135801][UC][D] Cache task(7,LOAD,64,33554432) finished, cost 12.345ms. [4711,4713]
//
// In brackets at the end are process and thread. Each line is a record of log/slog, whose
// attributes have the same values for programs.
package ucmlog
