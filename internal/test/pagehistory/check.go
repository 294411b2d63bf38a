package pagehistory

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// Eviction says whether the service may have forgotten a confirmed key by itself.
type Eviction bool

// checkLimit bounds the search for an order of the answers about all keys.
const checkLimit = 2 * time.Minute

// Check returns what is wrong with a history, at most a few of each kind. Its clients must
// have ended.
func (h *History) Check(e Eviction) []error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Concat(h.wrong, overlaps(h.spans), h.disorder(e))
}

// most bounds how many errors of a kind are reported.
const most = 5

// overlaps returns the pairs of spans in which one client may write a page for a key while
// another may use it for another key. The bytes of one key are always the same, and vLLM's
// clients may write a key again that somebody reads.
func overlaps(spans []span) (wrong []error) {
	sorted := slices.Clone(spans)
	slices.SortFunc(sorted, func(a, b span) int { return cmp.Or(cmp.Compare(a.page, b.page), cmp.Compare(a.from, b.from)) })
	var open []span // of this page, that have not ended
	for _, s := range sorted {
		open = slices.DeleteFunc(open, func(o span) bool { return o.page != s.page || o.to <= s.from })
		for _, o := range open {
			if o.key != s.key && (o.writes || s.writes) && len(wrong) < most {
				wrong = append(wrong, fmt.Errorf("a page has two users: %v; %v", o, s))
			}
		}
		open = append(open, s)
	}
	return wrong
}

// disorder returns the keys whose answers fit into no order.
func (h *History) disorder(e Eviction) (wrong []error) {
	byKey := map[string][]porcupine.Operation{}
	for _, q := range h.asked {
		byKey[q.key] = append(byKey[q.key], porcupine.Operation{ClientId: q.client, Input: q, Call: int64(q.sent), Output: q.page, Return: int64(q.answered)})
	}
	model := register(e)
	deadline := time.Now().Add(checkLimit)
	for key, asked := range byKey {
		switch porcupine.CheckOperationsTimeout(model, asked, max(time.Until(deadline), time.Second)) {
		case porcupine.Illegal:
			wrong = append(wrong, fmt.Errorf("the answers about key %q fit into no order: %s", key, inOrder(asked)))
		case porcupine.Unknown:
			wrong = append(wrong, fmt.Errorf("no order of the %d answers about key %q was found in time", len(asked), key))
		}
		if len(wrong) == most {
			break
		}
	}
	return wrong
}

// known is what is so of a key: its page, or none. A deletion that nobody has answered may be under way: while it is being logged the key is
// missed, so that its page is not read when it is given to another, and if that comes to nothing, because the leader dies, the key is found again.
type known struct {
	page     int64
	deleting bool
}

// register is what the service promises about one key.
func register(e Eviction) porcupine.Model {
	m := porcupine.NondeterministicModel{
		Init: func() []any { return []any{known{page: none}} },
		Step: func(state, input, output any) []any {
			s, q := state.(known), input.(question)
			switch q.verb {
			case confirm:
				// Where two clients save one key, the first page stays.
				if q.late || s.page != none && s.page != q.page {
					return []any{s, known{q.page, s.deleting}}
				}
				return []any{known{q.page, s.deleting}}
			case remove:
				if q.answered == never {
					return []any{known{page: none}, known{s.page, true}}
				}
				return []any{known{page: none}}
			}
			switch found := output.(int64); {
			case found == s.page, found == none && s.deleting:
				return []any{s}
			case found == none && bool(e):
				return []any{known{page: none}, s}
			}
			return nil
		},
	}
	return m.ToModel()
}

// inOrder describes the requests about a key in the order in which they were sent.
func inOrder(asked []porcupine.Operation) (text string) {
	asked = slices.Clone(asked)
	slices.SortFunc(asked, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
	for _, o := range asked {
		q := o.Input.(question)
		verb := map[verb]string{confirm: "confirm", locate: "locate", remove: "delete"}[q.verb]
		answered := fmt.Sprint(q.answered)
		if q.answered == never {
			answered = "never"
		}
		text += fmt.Sprintf("\n  client %d: %s, page %d, sent %v, answered %s", q.client, verb, q.page, q.sent, answered)
	}
	return text
}
