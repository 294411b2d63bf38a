package httpserver

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// This file has SGLang's seven routes. Each pool of each rank is a space of its own, with
// one rank.

// maxPoolBytes bounds the name of a pool.
const maxPoolBytes = 128

func sglangRoutes() map[string]*route {
	routes := map[string]*route{}
	for name, r := range map[string]*route{
		"initialize":                        {do: (*call).initializePool, form: form{"num_pages": readNumPages}},
		"exists":                            {do: (*call).existInPool, gives: presence, form: form{"keys": readKeys}},
		"reserve_and_allocate_page_indices": {do: (*call).reserveInPool, gives: reservations, form: form{"keys": readPairs}},
		"confirm_write":                     {do: (*call).confirmInPool, writes: true, form: form{"written_keys_to_confirm": readWritten, "pages_to_release": readRelease}},
		"delete_keys":                       {do: (*call).deleteFromPool, once: true, form: form{"keys": readKeys}},
		"clear":                             {do: (*call).clearPool, once: true, form: form{}},
		"get_page_indices":                  {do: (*call).locateInPool, gives: locations, form: form{"keys": readKeys}},
	} {
		r.name, r.ranked, r.proves = "sglang/"+name, true, true
		r.form["namespace"] = readPool
		routes[name] = r
	}
	return routes
}

// poolSpace returns the space of the pool and the rank of the request.
func (c *call) poolSpace() pageservice.Space {
	return pageservice.Space{Namespace: c.namespace, Set: "sglang/" + c.request.pool + "/" + strconv.Itoa(c.pathRank)}
}

// enter checks that the fields of a body are there and that the pool is known. lists
// reports for each list whether it is one.
func (c *call) enter(lists ...bool) (pageservice.Space, error) {
	for _, ok := range lists {
		if !ok {
			return pageservice.Space{}, malformed("a field is missing or not a list")
		}
	}
	if c.wrong != nil {
		return pageservice.Space{}, c.wrong
	}
	s := c.poolSpace()
	_, err := c.index.Locate(c.ctx, s, c.pathRank, nil)
	return s, c.inPool(err)
}

// inPool turns an unknown rank into what SGLang expects: 404.
func (c *call) inPool(err error) error {
	if errors.Is(err, pageservice.ErrUnknownRank) {
		return refusal{http.StatusNotFound, fmt.Sprintf("rank %d of namespace '%s' is not initialized: POST /%d/initialize comes first", c.pathRank, c.request.pool, c.pathRank)}
	}
	return err
}

func (c *call) initializePool() error {
	switch {
	case c.wrong != nil:
		return c.wrong
	case !c.numPages.given:
		return malformed("num_pages is missing")
	case len(c.request.pool) > maxPoolBytes:
		return refusal{http.StatusBadRequest, fmt.Sprintf("namespace is longer than %d bytes", maxPoolBytes)}
	}
	return c.makeKnown(c.poolSpace(), pageservice.RankOptions{NumPages: c.numPages.value})
}

func (c *call) existInPool() error {
	s, err := c.enter(c.keys.given && c.keys.isList)
	if err != nil {
		return err
	}
	there, err := c.index.Exists(c.ctx, s, c.keys.items)
	if err != nil {
		return err
	}
	c.out = append(appendBools(append(c.out, `{"exists":`...), there), '}')
	return nil
}

// reserveInPool reserves what it can: SGLang skips a key with page -1.
func (c *call) reserveInPool() error {
	s, err := c.enter(c.keys.given && c.keys.isList)
	if err != nil {
		return err
	}
	grants, err := c.reserveIn(s, c.pathRank, c.keys.items, false)
	if err != nil {
		return c.inPool(err)
	}
	c.out = append(appendList(append(c.out, `{"indices":`...), grants, appendGrant), '}')
	return nil
}

func appendGrant(b []byte, g pageservice.Grant) []byte {
	b = append(strconv.AppendBool(append(b, '['), g.Present), ',')
	return append(strconv.AppendInt(b, g.Page, 10), ']')
}

func (c *call) confirmInPool() error {
	s, err := c.enter(c.written.isList, c.release.isList)
	if err != nil {
		return err
	}
	return c.inPool(c.confirmIn(s, c.pathRank))
}

func (c *call) deleteFromPool() error {
	s, err := c.enter(c.keys.given && c.keys.isList)
	if err != nil {
		return err
	}
	_, err = c.index.Delete(c.ctx, s, c.keys.items)
	return c.noteChange(err)
}

func (c *call) clearPool() error {
	s, err := c.enter()
	if err != nil {
		return err
	}
	return c.clearSpace(s)
}

func (c *call) locateInPool() error {
	s, err := c.enter(c.keys.given && c.keys.isList)
	if err != nil {
		return err
	}
	where, err := c.index.Locate(c.ctx, s, c.pathRank, c.keys.items)
	if err != nil {
		return c.inPool(err)
	}
	c.out = append(appendPages(append(c.out, `{"indices":`...), where), '}')
	return nil
}
