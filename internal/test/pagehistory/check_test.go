package pagehistory

import (
	"strings"
	"testing"
	"time"
)

const ms = time.Millisecond

func TestCheckNotices(t *testing.T) {
	write := func(from, to time.Duration) span {
		return span{page: 1, writes: true, from: from, to: to, key: "w" + from.String()}
	}
	read := func(from, to time.Duration) span { return span{page: 1, from: from, to: to, key: "r"} }
	ask := func(v verb, page int64, sent, answered time.Duration) question {
		return question{verb: v, key: "k", page: page, sent: sent, answered: answered}
	}
	for _, c := range []struct {
		name   string
		spans  []span
		asked  []question
		evicts Eviction
		want   string // "": nothing is wrong
	}{
		{name: "nothing"},
		{name: "readers share a page", spans: []span{read(0, 3*ms), read(1*ms, 2*ms)}},
		{name: "one after the other", spans: []span{write(0, 1*ms), read(1*ms, 5*ms), write(5*ms, 6*ms)}},
		{name: "two writers", spans: []span{write(0, 3*ms), write(2*ms, 4*ms)}, want: "two users"},
		{name: "a writer in a lease", spans: []span{read(0, 9*ms), read(1*ms, 2*ms), write(3*ms, 4*ms)}, want: "two users"},
		{name: "a reader of what is being written", spans: []span{write(0, 9*ms), read(3*ms, 4*ms)}, want: "two users"},
		{name: "a long writer behind a short reader", spans: []span{write(0, 9*ms), read(9*ms, 10*ms), write(9500*time.Microsecond, 12*ms)}, want: "two users"},
		{name: "one key", spans: []span{read(0, 9*ms), {page: 1, writes: true, from: 1 * ms, to: 2 * ms, key: "r"}}},
		{name: "other pages", spans: []span{write(0, 9*ms), {page: 2, writes: true, from: 1 * ms, to: 2 * ms}}},

		{name: "saved and found", asked: []question{ask(confirm, 7, 0, 1*ms), ask(locate, 7, 2*ms, 3*ms)}},
		{name: "never saved", asked: []question{ask(locate, 7, 2*ms, 3*ms)}, want: "no order"},
		{name: "lost", asked: []question{ask(confirm, 7, 0, 1*ms), ask(locate, none, 2*ms, 3*ms)}, want: "no order"},
		{name: "missed while it is deleted, which comes to nothing", asked: []question{
			ask(confirm, 7, 0, 1*ms), ask(remove, none, 2*ms, never), ask(locate, none, 3*ms, 4*ms), ask(locate, 7, 5*ms, 6*ms)}},
		{name: "found though it was deleted", asked: []question{
			ask(confirm, 7, 0, 1*ms), ask(remove, none, 2*ms, 3*ms), ask(locate, none, 3*ms, 4*ms), ask(locate, 7, 5*ms, 6*ms)}, want: "no order"},
		{name: "another page though a deletion is under way", asked: []question{
			ask(confirm, 7, 0, 1*ms), ask(remove, none, 2*ms, never), ask(locate, 8, 5*ms, 6*ms)}, want: "no order"},
		{name: "evicted", asked: []question{ask(confirm, 7, 0, 1*ms), ask(locate, none, 2*ms, 3*ms)}, evicts: true},
		{name: "another page", asked: []question{ask(confirm, 7, 0, 1*ms), ask(locate, 8, 2*ms, 3*ms)}, evicts: true, want: "no order"},
		{name: "an old page of a stale leader", evicts: true, want: "no order", asked: []question{
			ask(confirm, 7, 0, 1*ms), ask(remove, none, 2*ms, 3*ms), ask(confirm, 8, 4*ms, 5*ms), ask(locate, 7, 6*ms, 7*ms),
		}},
		{name: "deleted", asked: []question{ask(confirm, 7, 0, 1*ms), ask(remove, none, 2*ms, 3*ms), ask(locate, none, 4*ms, 5*ms)}},
		{name: "back from deletion", evicts: true, want: "no order", asked: []question{
			ask(confirm, 7, 0, 1*ms), ask(remove, none, 2*ms, 3*ms), ask(locate, 7, 4*ms, 5*ms),
		}},
		{name: "found while it is being confirmed", asked: []question{ask(confirm, 7, 0, 9*ms), ask(locate, 7, 2*ms, 3*ms), ask(locate, 7, 4*ms, 5*ms)}},
		{name: "found and lost again while it is being confirmed", want: "no order", asked: []question{
			ask(confirm, 7, 0, 9*ms), ask(locate, 7, 2*ms, 3*ms), ask(locate, none, 4*ms, 5*ms),
		}},
		{name: "confirmed too late", asked: []question{{verb: confirm, key: "k", page: 7, answered: 9 * ms, late: true}, ask(locate, none, 10*ms, 11*ms)}},
		{name: "confirmed too late, and lost", want: "no order", asked: []question{
			{verb: confirm, key: "k", page: 7, answered: 9 * ms, late: true}, ask(locate, 7, 10*ms, 11*ms), ask(locate, none, 12*ms, 13*ms),
		}},
		{name: "an unanswered confirmation shows late", asked: []question{ask(confirm, 7, 0, never), ask(locate, none, 2*ms, 3*ms), ask(locate, 7, 4*ms, 5*ms)}},
		{name: "an unanswered confirmation that was not executed", asked: []question{ask(confirm, 7, 0, never), ask(locate, none, 2*ms, 3*ms)}},
		{name: "an unanswered confirmation that comes and goes", want: "no order", asked: []question{
			ask(confirm, 7, 0, never), ask(locate, 7, 2*ms, 3*ms), ask(locate, none, 4*ms, 5*ms),
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := New()
			for _, s := range c.spans {
				h.addSpan(s)
			}
			for i, q := range c.asked {
				q.client = i
				h.addQuestion(q)
			}
			wrong := h.Check(c.evicts)
			switch {
			case c.want == "" && len(wrong) > 0:
				t.Error(wrong)
			case c.want != "" && (len(wrong) != 1 || !strings.Contains(wrong[0].Error(), c.want)):
				t.Errorf("want one error with %q: %v", c.want, wrong)
			}
		})
	}
}
