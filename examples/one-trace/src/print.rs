//! An exporter that prints a line for each span.

use std::process;

use opentelemetry::trace::SpanId;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SpanData, SpanExporter};

#[derive(Debug)]
pub(crate) struct Printed;

impl SpanExporter for Printed {
    async fn export(&self, spans: Vec<SpanData>) -> OTelSdkResult {
        for span in spans {
            let parent = match span.parent_span_id {
                SpanId::INVALID => "none".to_owned(),
                parent => parent.to_string(),
            };
            let (trace, id) = (span.span_context.trace_id(), span.span_context.span_id());
            println!("process={} trace={trace} span={id} parent={parent} name={:?}", process::id(), span.name);
        }
        Ok(())
    }
}
