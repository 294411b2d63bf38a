package httpserver

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// This file has vLLM's six routes. All ranks share one space; a key is visible once every
// rank has it.

func vllmRoutes() (byName map[string]*route, initialize, clear *route) {
	byName = map[string]*route{
		"batch_allocate": {name: "vllm/batch_allocate", do: (*call).allocate, gives: reservations, proves: true,
			form: form{"rank": readRank, "keys": readPairs}},
		"confirm_write": {name: "vllm/confirm_write", do: (*call).confirm, writes: true, proves: true,
			form: form{"rank": readRank, "confirmations": readWritten, "pages_to_release": readRelease}},
		"batch_exists": {name: "vllm/batch_exists", do: (*call).exists, gives: presence,
			form: form{"keys": readKeys}},
		"get_locations": {name: "vllm/get_locations", do: (*call).locate, gives: locations, proves: true,
			form: form{"rank": readRank, "keys": readKeys}},
	}
	initialize = &route{name: "vllm/initialize", do: (*call).initialize, ranked: true, proves: true,
		form: form{"num_pages": readNumPages, "role": readRole}}
	clear = &route{name: "vllm/clear", do: (*call).clear, noBody: true, once: true}
	return byName, initialize, clear
}

func (c *call) vllm() pageservice.Space {
	return pageservice.Space{Namespace: c.namespace, Set: pageservice.VLLM}
}

func (c *call) initialize() error {
	switch {
	case c.role == "scheduler":
		return c.message("a scheduler needs no pages")
	case c.role == "worker" && c.wrong != nil:
		return c.wrong
	case c.role != "worker" || c.numPages.value <= 0:
		return refusal{http.StatusBadRequest, "invalid initialization: want role worker and num_pages above 0, or role scheduler"}
	}
	o := pageservice.RankOptions{NumPages: c.numPages.value}
	if err := c.makeKnown(c.vllm(), o); err != nil {
		return err
	}
	return c.message(fmt.Sprintf("rank %d has %d pages", c.pathRank, c.numPages.value))
}

func (c *call) message(text string) error {
	c.out = append(appendString(append(c.out, `{"message":`...), text), '}')
	return nil
}

// allocate reserves all pages or none: if one key gets no page, a save of vLLM fails as a
// whole, and the pages of the others would be reserved in vain.
func (c *call) allocate() error {
	if err := c.wantRank(c.keys.isList, "'rank' and 'keys'"); err != nil {
		return err
	}
	keys := c.distinct(c.keys.items)
	grants, err := c.reserveIn(c.vllm(), int(c.rank.value), keys, true)
	if err != nil {
		return c.failed("allocation failed", err)
	}
	b := strconv.AppendInt(append(c.out, `{"rank":`...), c.rank.value, 10)
	b = append(b, `,"results":[`...)
	for i, g := range grants {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendString(append(b, '['), keys[i]), ',')
		b = append(strconv.AppendInt(b, g.Page, 10), ']')
	}
	c.out = append(b, "]}"...)
	return nil
}

func (c *call) confirm() error {
	if err := c.wantRank(c.written.isList, "'rank' and 'confirmations'"); err != nil {
		return err
	}
	if !c.release.isList {
		return malformed("pages_to_release is not a list")
	}
	return c.failed("confirmation failed", c.confirmIn(c.vllm(), int(c.rank.value)))
}

func (c *call) exists() error {
	switch {
	case !c.keys.isList:
		return refusal{http.StatusBadRequest, "'keys' is not a list"}
	case c.wrong != nil:
		return c.wrong
	}
	there, err := c.index.Exists(c.ctx, c.vllm(), c.keys.items)
	if err != nil {
		return c.failed("looking keys up failed", err)
	}
	c.out = append(appendBools(append(c.out, `{"exists":`...), there), '}')
	return nil
}

func (c *call) locate() error {
	if err := c.wantRank(c.keys.isList, "'rank' and 'keys'"); err != nil {
		return err
	}
	where, err := c.index.Locate(c.ctx, c.vllm(), int(c.rank.value), c.keys.items)
	if err != nil {
		return c.failed("locating keys failed", err)
	}
	c.out = append(appendPages(append(c.out, `{"locations":`...), where), '}')
	return nil
}

// clear forgets the keys. The ranks stay known, so that engines can go on.
func (c *call) clear() error {
	return c.clearSpace(c.vllm())
}

// clearSpace forgets the keys of a space and logs it: a cache that is suddenly cold is a
// riddle otherwise.
func (c *call) clearSpace(s pageservice.Space) error {
	err := c.index.Clear(c.ctx, s)
	if err == nil {
		if more, now := c.server.pace.Log("clear " + s.Namespace + " " + s.Set); now {
			c.server.log.Info("a client cleared a set of keys", "namespace", s.Namespace, "set", s.Set, "more", more)
		}
	}
	return c.noteChange(err)
}

// wantRank checks that the fields of a body are there, and then their items.
func (c *call) wantRank(isList bool, need string) error {
	switch {
	case !c.request.rank.given || !isList:
		return refusal{http.StatusBadRequest, "invalid request: need " + need}
	case c.wrong != nil:
		return c.wrong
	}
	return nil
}

// failed names what failed. vLLM expects 500 for a rank that was never initialised.
func (c *call) failed(what string, err error) error {
	if errors.Is(err, pageservice.ErrUnknownRank) {
		return refusal{http.StatusInternalServerError, fmt.Sprintf("%s: rank %d is not initialized", what, c.rank.value)}
	}
	return err
}

// distinct removes repeated keys, and keeps the order of first occurrence.
func (c *call) distinct(keys []string) []string {
	seen := c.seen
	if len(keys) > keepNames {
		seen = map[string]struct{}{} // a large one is not worth keeping
	}
	kept := keys[:0]
	for _, key := range keys {
		if _, again := seen[key]; !again {
			seen[key] = struct{}{}
			kept = append(kept, key)
		}
	}
	clear(seen)
	return kept
}
