// Package pagesbench compares the page service with a plain Python program that has the
// state and the lock of the reference servers (reference/server.py).
//
// Both get the same bytes from the same client over loopback. They take turns, run by run,
// and another begins each round; the median of the runs counts. The client implements just
// enough of HTTP/1.1 and prepares its requests, so that it does not measure itself. It
// checks the status and the hits of every answer, and one answer in checkEvery to the last
// page, so that it does not measure wrong answers.
package pagesbench
