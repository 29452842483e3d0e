//! Makes the tables of a cluster at a local or test endpoint. In AWS the stack makes them.
//!
//! Guarantees: returns the names of the tables that it made. Does not: change a table that exists.

use anyhow::Context as _;
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::error::BuildError;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, GlobalSecondaryIndex, KeySchemaElement, KeyType as SdkKeyType, Projection,
    ProjectionType, ScalarAttributeType, TimeToLiveSpecification,
};
use store::{Definition, Dynamo, EXPIRES, KeyAttribute, KeySchema, KeyType, TABLES};

/// Makes the tables that do not exist yet, and returns their names.
pub async fn make(dynamo: &Dynamo) -> anyhow::Result<Vec<String>> {
    let mut made = Vec::new();
    for definition in TABLES {
        let name = format!("{}-{}", dynamo.cluster, definition.table.suffix());
        if make_one(&dynamo.client, definition, &name).await.with_context(|| format!("{name} cannot be made"))? {
            made.push(name);
        }
    }
    Ok(made)
}

/// Makes one table. Returns whether it did not exist.
async fn make_one(client: &Client, definition: &Definition, name: &str) -> anyhow::Result<bool> {
    let mut attributes: Vec<KeyAttribute> = Vec::new();
    for key in std::iter::once(definition.key).chain(definition.indexes.iter().map(|i| i.key)) {
        for attribute in std::iter::once(key.hash).chain(key.range) {
            if !attributes.contains(&attribute) {
                attributes.push(attribute);
            }
        }
    }
    let mut request = client.create_table().table_name(name).billing_mode(BillingMode::PayPerRequest);
    for attribute in attributes {
        let kind = match attribute.kind {
            KeyType::Number => ScalarAttributeType::N,
            KeyType::Text => ScalarAttributeType::S,
        };
        let built = AttributeDefinition::builder().attribute_name(attribute.name).attribute_type(kind).build()?;
        request = request.attribute_definitions(built);
    }
    for element in schema(definition.key)? {
        request = request.key_schema(element);
    }
    for index in definition.indexes {
        let projection = match index.projected {
            None => Projection::builder().projection_type(ProjectionType::KeysOnly),
            Some(names) => Projection::builder()
                .projection_type(ProjectionType::Include)
                .set_non_key_attributes(Some(names.iter().map(|n| (*n).to_owned()).collect())),
        };
        let built = GlobalSecondaryIndex::builder()
            .index_name(index.name)
            .set_key_schema(Some(schema(index.key)?))
            .projection(projection.build())
            .build()?;
        request = request.global_secondary_indexes(built);
    }
    if let Err(error) = request.send().await {
        let is_there = error.as_service_error().is_some_and(|error| error.is_resource_in_use_exception());
        return if is_there { Ok(false) } else { Err(error.into()) };
    }
    if definition.expires {
        let ttl = TimeToLiveSpecification::builder().enabled(true).attribute_name(EXPIRES).build()?;
        client.update_time_to_live().table_name(name).time_to_live_specification(ttl).send().await?;
    }
    Ok(true)
}

fn schema(key: KeySchema) -> Result<Vec<KeySchemaElement>, BuildError> {
    let element =
        |name: &str, kind: SdkKeyType| KeySchemaElement::builder().attribute_name(name).key_type(kind).build();
    let mut elements = vec![element(key.hash.name, SdkKeyType::Hash)?];
    if let Some(range) = key.range {
        elements.push(element(range.name, SdkKeyType::Range)?);
    }
    Ok(elements)
}
