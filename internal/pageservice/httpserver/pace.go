package httpserver

import (
	"net/http"
	"time"
)

// paceBytes is how many bytes of a large body must arrive in a second. Such bodies hold
// memory that others wait for.
const paceBytes = 256 << 10

// pace is how fast a body must arrive. The zero value leaves that to the server.
type pace struct {
	begin       time.Time
	grace, most time.Duration
}

// expect gives a body so much time for its next bytes as its pace allows.
func (p *pace) expect(c *http.ResponseController, received int) error {
	if p.begin.IsZero() {
		return nil
	}
	due := p.grace + time.Duration(received)*time.Second/paceBytes
	return c.SetReadDeadline(p.begin.Add(min(due, p.most)))
}

// end removes the deadline of a body that has arrived: the server would take it for the
// end of the client.
func (p *pace) end(c *http.ResponseController) error {
	if p.begin.IsZero() {
		return nil
	}
	return c.SetReadDeadline(time.Time{})
}
