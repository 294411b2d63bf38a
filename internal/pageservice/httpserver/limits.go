package httpserver

import "time"

// Limits bound what a client can make the service hold or wait for. The zero value
// of each means its default.
type Limits struct {
	BodyBytes   int64         // of one request; 8 MiB
	LargeBytes  int64         // of all bodies above smallBody together; 128 MiB. Further ones wait, at most Work
	BatchKeys   int           // keys, or pages, of one request; 65536
	KeyBytes    int           // of one key; 4096
	Requests    int           // executed at once, before others get 503; 512
	Connections int           // open at once, before others are closed; 4096
	Header      time.Duration // a request's head comes within; 5 s
	Body        time.Duration // a whole request comes within; 15 s
	Work        time.Duration // the book answers within; 10 s, below Body, which cuts it off
	Write       time.Duration // an answer is taken within, from the request's begin on; 60 s
	Idle        time.Duration // a connection may rest between requests; 5 min
}

// smallBody is what a body may have without waiting for room: above the batches that
// engines send, so that those never wait for somebody else's megabytes. The number of
// connections bounds how many there are.
const smallBody = 128 << 10

// WithDefaults fills in what is zero.
func (l Limits) WithDefaults() Limits {
	orElse(&l.BodyBytes, 8<<20)
	orElse(&l.LargeBytes, 128<<20)
	orElse(&l.BatchKeys, 65536)
	orElse(&l.KeyBytes, 4096)
	orElse(&l.Requests, 512)
	orElse(&l.Connections, 4096)
	orElse(&l.Header, 5*time.Second)
	orElse(&l.Body, 15*time.Second)
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
