package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	"github.com/goccy/go-yaml"
)

// yamlFile resolves flags from a configuration file: one mapping whose keys are
// flag names without the dashes. Flags and environment win over it.
type yamlFile struct {
	name   string
	values map[string]any
}

func yamlConfig(r io.Reader) (kong.Resolver, error) {
	name := "configuration"
	if f, ok := r.(interface{ Name() string }); ok {
		name = f.Name()
	}
	y := &yamlFile{name: name, values: map[string]any{}}
	if err := yaml.NewDecoder(r).Decode(&y.values); err != nil && err != io.EOF {
		return nil, fmt.Errorf("%s: not a YAML mapping of flag names to values: %w", name, err)
	}
	return y, nil
}

// Validate refuses keys that no command has, so that a misspelt one is not
// silently nothing.
func (y *yamlFile) Validate(app *kong.Application) error {
	var known []string
	kong.Visit(app, func(node kong.Visitable, next kong.Next) error {
		if flag, ok := node.(*kong.Flag); ok {
			known = append(known, flag.Name)
		}
		return next(nil)
	})
	for key := range y.values {
		if !slices.Contains(known, key) {
			slices.Sort(known)
			return fmt.Errorf("%s: unknown key %q; keys are the flag names: %s", y.name, key, strings.Join(slices.Compact(known), ", "))
		}
	}
	return nil
}

// Resolve gives a flag its value.
func (y *yamlFile) Resolve(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	v, ok := y.values[flag.Name]
	if !ok || slices.ContainsFunc(flag.Envs, func(env string) bool { _, set := os.LookupEnv(env); return set }) {
		return nil, nil
	}
	switch v.(type) {
	case map[string]any, []any:
		return nil, fmt.Errorf("%s: key %q wants a single value", y.name, flag.Name)
	}
	return fmt.Sprint(v), nil
}
