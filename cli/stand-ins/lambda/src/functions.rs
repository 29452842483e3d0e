//! All functions by name: the state of every HTTP handler.

use crate::error::InvokeError;
use crate::function::Function;
use crate::host::Host;
use std::collections::BTreeMap;
use std::sync::Arc;

/// All functions by name, and what they share.
#[derive(Debug)]
pub(crate) struct Functions {
    pub(crate) by_name: BTreeMap<String, Arc<Function>>,
    pub(crate) host: Arc<Host>,
}

impl Functions {
    pub(crate) fn get(&self, name: &str) -> Result<&Arc<Function>, InvokeError> {
        self.by_name.get(name).ok_or_else(|| InvokeError::UnknownFunction {
            function: name.to_owned(),
            known: self.by_name.keys().map(String::as_str).collect::<Vec<_>>().join(", "),
        })
    }
}
