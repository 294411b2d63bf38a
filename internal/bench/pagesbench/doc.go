// Package pagesbench measures the page service beside a plain Python program
// with the reference servers' state and lock (reference/server.py).
//
// Both get the same bytes from the same client over loopback, in turns, run by
// run, another beginning each round; the median of the runs counts. So that the
// client does not measure itself, it speaks just enough HTTP/1.1 and has its
// requests ready; so that it does not measure nonsense, every answer is checked
// for its status and its hits, and one in checkEvery to the last page.
package pagesbench
