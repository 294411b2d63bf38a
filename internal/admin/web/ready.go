package web

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"
)

// checkTime bounds what /readyz waits for all checks; they are asked at once.
const checkTime = 5 * time.Second

// Check says whether a part of the daemon can serve.
type Check struct {
	// Name is what the part is called in answers, such as "data directory".
	Name string
	// Ask returns why the part cannot serve, and how that is cured. It may be called at once and ends with its context.
	Ask func(context.Context) error
}

// readyz answers whether every part can serve: a line for each that cannot, or 200.
func (s *Server) readyz(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), checkTime)
	defer cancel()
	found := make([]error, len(s.o.Ready))
	var asked sync.WaitGroup
	for i, c := range s.o.Ready {
		asked.Go(func() { found[i] = c.Ask(ctx) })
	}
	asked.Wait()
	var why []string
	for i, err := range found {
		if err != nil {
			why = append(why, fmt.Sprintf("%s: %v", s.o.Ready[i].Name, err))
		}
	}
	if len(why) > 0 {
		say(w, http.StatusServiceUnavailable, strings.Join(why, "\n"))
		return
	}
	say(w, http.StatusOK, "ready")
}
