package api

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/kv3fs/kv3fs/internal/exactjson"
	"github.com/kv3fs/kv3fs/internal/keeper"
)

// described returns what openapi.yaml says.
func described(t *testing.T) *openapi3.T {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromData(OpenAPI())
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return doc
}

// Every path and method that is answered is described, and nothing else is.
func TestEveryPathIsDescribed(t *testing.T) {
	var served, told []string
	for path, methods := range New(Options{}).routes {
		for method := range methods {
			served = append(served, method+" /"+path)
		}
	}
	for path, item := range described(t).Paths.Map() {
		for method, is := range item.Operations() {
			told = append(told, method+" "+path)
			if is.Summary == "" {
				t.Errorf("%s %s has no summary", method, path)
			}
		}
	}
	slices.Sort(served)
	slices.Sort(told)
	if !slices.Equal(served, told) {
		t.Errorf("served:    %q\ndescribed: %q", served, told)
	}
}

// documents are the types of the schemas. Others are found in their fields.
func documents() []reflect.Type {
	return []reflect.Type{
		reflect.TypeFor[Status](), reflect.TypeFor[Findings](), reflect.TypeFor[History](), reflect.TypeFor[Usage](), reflect.TypeFor[Hits](), reflect.TypeFor[Keeping](),
		reflect.TypeFor[Curve](), reflect.TypeFor[Clients](), reflect.TypeFor[Pages](), reflect.TypeFor[Hosts](), reflect.TypeFor[Log](), reflect.TypeFor[LogLevel](), reflect.TypeFor[Failure](),
	}
}

// fieldsOf returns the fields of a struct's JSON with their types.
func fieldsOf(t reflect.Type) map[string]reflect.Type {
	all := map[string]reflect.Type{}
	for _, f := range exactjson.Fields(t) {
		is := t.FieldByIndex(f.Index).Type
		if f.Name == "" {
			maps.Copy(all, fieldsOf(is))
			continue
		}
		all[f.Name] = is
	}
	return all
}

// nameOf returns the schema of a type. Those of the keeper would not be unique.
func nameOf(is reflect.Type) string {
	switch is {
	case reflect.TypeFor[keeper.State](), reflect.TypeFor[keeper.Ages]():
		return "Keeper" + is.Name()
	}
	return is.Name()
}

// Every field of an answer is described with its type and always there, and no other field is described.
func TestEveryFieldIsDescribed(t *testing.T) {
	schemas := described(t).Components.Schemas
	seen := map[string]bool{"NotUTF8": true, "Health": true}
	const texts = "not_utf8"
	var check func(is reflect.Type, whole bool)
	check = func(is reflect.Type, whole bool) {
		name := nameOf(is)
		if seen[name] {
			return
		}
		seen[name] = true
		s := schemas[name]
		if s == nil {
			t.Errorf("there is no schema %s", name)
			return
		}
		fields := fieldsOf(is)
		var want []string
		for field, of := range fields {
			want = append(want, field)
			if p := s.Value.Properties[field]; p == nil {
				t.Errorf("%s.%s is not described", name, field)
			} else if !fits(of, p) {
				t.Errorf("%s.%s is described as another type than %v", name, field, of)
			}
		}
		for field := range s.Value.Properties {
			if fields[field] == nil && !(whole && field == texts) {
				t.Errorf("%s.%s does not exist", name, field)
			}
		}
		if whole && s.Value.Properties[texts] == nil {
			t.Errorf("%s lacks %s", name, texts)
		}
		slices.Sort(want)
		required := slices.Sorted(slices.Values(s.Value.Required))
		if !slices.Equal(required, want) {
			t.Errorf("%s requires %q; want %q", name, required, want)
		}
		if no := s.Value.AdditionalProperties.Has; no == nil || *no {
			t.Errorf("%s may have other fields", name)
		}
		for _, of := range fields {
			for of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice {
				of = of.Elem()
			}
			if of.Kind() == reflect.Struct && !exactjson.Own(of) {
				check(of, false)
			}
		}
	}
	for _, is := range documents() {
		check(is, true)
	}
	for name := range schemas {
		if !seen[name] {
			t.Errorf("the schema %s is of no answer", name)
		}
	}
}

// fits reports whether a schema describes a type. nil is allowed where it can be.
func fits(of reflect.Type, is *openapi3.SchemaRef) bool {
	null := false
	for _, one := range is.Value.AnyOf {
		if one.Value.Type.Is(openapi3.TypeNull) {
			null = true
			continue
		}
		is = one
	}
	kinds := is.Value.Type.Slice()
	if i := slices.Index(kinds, openapi3.TypeNull); i >= 0 {
		null, kinds = true, slices.Delete(slices.Clone(kinds), i, i+1)
	}
	if of.Kind() == reflect.Pointer {
		if !null {
			return false
		}
		of = of.Elem()
	} else if null {
		return false
	}
	want := map[reflect.Kind]string{
		reflect.Bool: openapi3.TypeBoolean, reflect.String: openapi3.TypeString, reflect.Float64: openapi3.TypeNumber, reflect.Slice: openapi3.TypeArray, reflect.Struct: openapi3.TypeObject,
		reflect.Int: openapi3.TypeInteger, reflect.Int32: openapi3.TypeInteger, reflect.Int64: openapi3.TypeInteger, reflect.Uint32: openapi3.TypeInteger, reflect.Uint64: openapi3.TypeInteger,
	}[of.Kind()]
	if exactjson.Own(of) {
		want = openapi3.TypeString
	}
	if len(kinds) != 1 || kinds[0] != want {
		return false
	}
	name := is.Ref[strings.LastIndexByte(is.Ref, '/')+1:]
	switch {
	case of.Kind() == reflect.Slice:
		return fits(of.Elem(), is.Value.Items)
	case want == openapi3.TypeObject:
		return name == nameOf(of)
	}
	return true
}

// The description of errors has every status that the sources of this package refuse with.
func TestEveryStatusIsDescribed(t *testing.T) {
	text, err := os.ReadFile("api.go")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`refuse\(http\.Status(\w+)`).FindAllStringSubmatch(string(text), -1)
	if len(found) == 0 {
		t.Fatal("no status in api.go")
	}
	says := described(t).Components.Responses["Failure"].Value.Description
	for code := 400; code < 600; code++ {
		name := strings.ReplaceAll(http.StatusText(code), " ", "")
		if slices.ContainsFunc(found, func(f []string) bool { return f[1] == name }) && !strings.Contains(*says, fmt.Sprintf("%d: ", code)) {
			t.Errorf("%d %s is not described", code, name)
		}
	}
}
