#[cfg(test)]
