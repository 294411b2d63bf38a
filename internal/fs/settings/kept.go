package settings

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// kept is what clients have set, by key, as TOML values.
type kept struct {
	Everybody map[string]string            `json:"everybody,omitempty"`
	Users     map[uint32]map[string]string `json:"users,omitempty"`
}

// Keep has write be called with all that clients have set, now and before each change takes effect. Call it once, before
// anybody else uses s.
func (s *Settings) Keep(write func(text []byte) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keep = write
	return s.publish(s.now.Load())
}

// publish makes next current. The caller holds mu.
func (s *Settings) publish(next *state) error {
	if s.keep != nil {
		text, err := json.Marshal(s.keptOf(next))
		if err == nil {
			err = s.keep(text)
		}
		if err != nil {
			return fmt.Errorf("keep the settings: %w", err)
		}
	}
	s.now.Store(next)
	return nil
}

// Changed reports whether clients have set anything.
func (s *Settings) Changed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.everybody) > 0 || len(s.now.Load().users) > 0
}

func (s *Settings) keptOf(next *state) kept {
	k := kept{Everybody: s.everybody, Users: map[uint32]map[string]string{}}
	for uid, mine := range next.users {
		k.Users[uid] = map[string]string{}
		for i, name := range Keys() {
			if mine.set[i] {
				k.Users[uid][name] = format(key(i).kind(), mine.values[i])
			}
		}
	}
	return k
}

// Restore sets what Keep has written. What is not valid under the daemon's options by now is left out and
// named in the error.
func (s *Settings) Restore(text []byte) error {
	var k kept
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&k); err != nil {
		return err
	}
	var errs []error
	for name, value := range k.Everybody {
		if PerUser(name) {
			errs = append(errs, fmt.Errorf("%s is each user's own", name))
			continue
		}
		if err := s.Set(0, name, value); err != nil {
			errs = append(errs, fmt.Errorf("%s = %s: %w", name, value, err))
		}
	}
	for uid, values := range k.Users {
		for name, value := range values {
			err := errors.New("it is not a user's")
			if PerUser(name) {
				err = s.Set(uid, name, value)
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("%s = %s of user %d: %w", name, value, uid, err))
			}
		}
	}
	return errors.Join(errs...)
}
