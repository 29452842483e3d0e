# Counts the primes of a part: the numbers from (part − 1) × size + 1 to part × size.
BEGIN {
  for (n = (part - 1) * size + 1; n <= part * size; n++) {
    is_prime = n > 1
    for (d = 2; is_prime && d * d <= n; d++) is_prime = n % d != 0
    count += is_prime
  }
  print count + 0
}
