package telemetry_test

import (
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	collectortrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonv1 "go.opentelemetry.io/proto/otlp/common/v1"
	"google.golang.org/protobuf/proto"
)

// span is a span as a collector gets it.
type span struct {
	service, name     string
	trace, id, parent string // in hexadecimal
	attributes        map[string]string
}

// collector receives spans over OTLP/HTTP.
type collector struct {
	*httptest.Server

	mu    sync.Mutex
	spans []span
}

func newCollector(t *testing.T) *collector {
	c := &collector{}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var request collectortrace.ExportTraceServiceRequest
		if err == nil {
			err = proto.Unmarshal(body, &request)
		}
		if err != nil || r.URL.Path != "/v1/traces" {
			t.Errorf("a request to %s that is no export: %v", r.URL.Path, err)
			http.Error(w, "not an export", http.StatusBadRequest)
			return
		}
		c.take(&request)
	}))
	t.Cleanup(c.Close)
	return c
}

func (c *collector) take(request *collectortrace.ExportTraceServiceRequest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, of := range request.ResourceSpans {
		service := values(of.Resource.Attributes)["service.name"]
		for _, scope := range of.ScopeSpans {
			for _, s := range scope.Spans {
				c.spans = append(c.spans, span{
					service: service, name: s.Name, attributes: values(s.Attributes),
					trace: hex.EncodeToString(s.TraceId), id: hex.EncodeToString(s.SpanId), parent: hex.EncodeToString(s.ParentSpanId),
				})
			}
		}
	}
}

// values returns the attributes that are text.
func values(attributes []*commonv1.KeyValue) map[string]string {
	m := map[string]string{}
	for _, a := range attributes {
		m[a.Key] = a.Value.GetStringValue()
	}
	return m
}

// paths returns the spans from the one with an ID outwards: the service and the name of each, and
// for a resize the pod, the way and the direction. It fails when a span is of another trace or has
// a parent that was not received.
func (c *collector) paths(t *testing.T, trace, outermost string) map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	byID := map[string]span{}
	for _, s := range c.spans {
		byID[s.id] = s
	}
	found := map[string]int{}
	for _, s := range c.spans {
		if s.trace != trace {
			t.Errorf("span %s of %s is of trace %s", s.name, s.service, s.trace)
		}
		names := []string{}
		if s.name == "libra.resize" {
			names = append(names, s.attributes["libra.pod"]+" "+s.attributes["libra.way"]+" "+s.attributes["libra.direction"])
		}
		for at := s; ; at = byID[at.parent] {
			names = append(names, at.service+":"+at.name)
			if at.parent == outermost {
				break
			}
			if _, ok := byID[at.parent]; !ok {
				t.Errorf("span %s of %s has the parent %q, which nobody sent", at.name, at.service, at.parent)
				break
			}
		}
		found[strings.Join(names, " < ")]++
	}
	return found
}
