package httpserver

import "time"

// Limits bound what a client can make the service hold, and how long it can make it wait.
// The zero value of each field means its default.
type Limits struct {
	BodyBytes   int64         // of one request; 8 MiB
	LargeBytes  int64         // of all bodies above smallBody together; 128 MiB. Others wait, for at most Work. See budget
	BatchKeys   int           // keys, or pages, of one request; 65536
	KeyBytes    int           // of one key; 4096
	Requests    int           // executed at once; others get 503; 512. See budget
	Connections int           // open at once; others are closed; 4096. See budget and connections
	Header      time.Duration // for the head of a request to arrive; 5 s
	Body        time.Duration // for a whole request to arrive; 15 s
	Grace       time.Duration // for a large body, from when it may come, until it must come at some pace; 3 s
	Work        time.Duration // for the index to answer; 10 s, which must be below Body
	Write       time.Duration // from the beginning of a request until its answer was sent; 60 s
	Idle        time.Duration // that a connection may be idle between requests; 5 min
}

// smallBody is the size up to which a body does not wait for memory. It is above that of
// the batches that engines send, so that these never wait for the megabytes of others.
// The number of connections bounds how many small bodies there are.
const smallBody = 128 << 10

// WithDefaults returns l with defaults in place of zeros.
func (l Limits) WithDefaults() Limits {
	orElse(&l.BodyBytes, 8<<20)
	orElse(&l.LargeBytes, 128<<20)
	orElse(&l.BatchKeys, 65536)
	orElse(&l.KeyBytes, 4096)
	orElse(&l.Requests, 512)
	orElse(&l.Connections, 4096)
	orElse(&l.Header, 5*time.Second)
	orElse(&l.Body, 15*time.Second)
	orElse(&l.Grace, 3*time.Second)
	orElse(&l.Work, 10*time.Second)
	orElse(&l.Write, 60*time.Second)
	orElse(&l.Idle, 5*time.Minute)
	return l
}

func orElse[T comparable](v *T, otherwise T) {
	var zero T
	if *v == zero {
		*v = otherwise
	}
}
