//! Stores values under numbers that are issued in ascending order and removed in about the same order.

use std::collections::VecDeque;

/// Values by number, in one deque from the oldest number. A lookup is a subtraction. A removed value keeps
/// its place until all older ones are removed.
#[derive(Debug)]
pub(crate) struct Window<T> {
    /// The number of the first place, which holds a value.
    first: u64,
    places: VecDeque<Option<T>>,
    len: usize,
}

impl<T> Default for Window<T> {
    fn default() -> Self {
        Self { first: 0, places: VecDeque::new(), len: 0 }
    }
}

impl<T> Window<T> {
    fn place(&self, number: u64) -> Option<usize> {
        number.checked_sub(self.first).and_then(|place| usize::try_from(place).ok())
    }

    /// Stores a value under a number and replaces any earlier one.
    pub(crate) fn insert(&mut self, number: u64, value: T) {
        if self.places.is_empty() {
            self.first = number;
        }
        while self.first > number {
            self.places.push_front(None);
            self.first -= 1;
        }
        let Some(place) = self.place(number) else { return };
        if self.places.len() <= place {
            self.places.resize_with(place + 1, || None);
        }
        self.len += usize::from(self.places[place].replace(value).is_none());
    }

    pub(crate) fn get(&self, number: u64) -> Option<&T> {
        self.places.get(self.place(number)?)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        let place = self.place(number)?;
        self.places.get_mut(place)?.as_mut()
    }

    pub(crate) fn remove(&mut self, number: u64) -> Option<T> {
        let place = self.place(number)?;
        let value = self.places.get_mut(place)?.take()?;
        self.len -= 1;
        while let Some(None) = self.places.front() {
            self.places.pop_front();
            self.first += 1;
        }
        Some(value)
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The last number with a value.
    pub(crate) fn last(&self) -> Option<u64> {
        self.iter().next_back().map(|(number, _)| number)
    }

    /// All values with their numbers, in ascending order.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, &T)> {
        let numbered = self.places.iter().enumerate();
        numbered.filter_map(|(place, value)| Some((self.first + place as u64, value.as_ref()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(window: &Window<char>) -> Vec<(u64, char)> {
        window.iter().map(|(number, value)| (number, *value)).collect()
    }

    #[test]
    fn values_are_found_by_their_numbers_and_come_in_order() {
        let mut window = Window::default();
        for (number, value) in [(7, 'a'), (9, 'c'), (8, 'b'), (5, 'z')] {
            window.insert(number, value);
        }
        assert_eq!(all(&window), [(5, 'z'), (7, 'a'), (8, 'b'), (9, 'c')]);
        assert_eq!((window.get(6), window.get(4), window.get(10), window.len()), (None, None, None, 4));
        // Removing one in the middle does not move the others.
        assert_eq!((window.remove(8), window.remove(8), window.remove(4)), (Some('b'), None, None));
        assert_eq!((window.get(9), window.last(), window.len()), (Some(&'c'), Some(9), 3));
        window.remove(9);
        assert_eq!((window.last(), window.len()), (Some(7), 2));
        window.insert(9, 'd');
        *window.get_mut(7).unwrap() = 'e';
        assert_eq!((all(&window), window.len()), (vec![(5, 'z'), (7, 'e'), (9, 'd')], 3));
    }

    #[test]
    fn places_of_what_is_gone_are_given_back_with_the_oldest() {
        let mut window = Window::default();
        for number in 0..1000 {
            window.insert(number, ());
            // Each value lives as long as ten others.
            if number >= 10 {
                window.remove(number - 10);
            }
            assert!(window.places.len() <= 11);
        }
        assert_eq!(window.len(), 10);
        for number in (990..1000).rev() {
            window.remove(number);
        }
        assert!(window.is_empty() && window.places.is_empty());
        // The next number is far away and takes one place.
        window.insert(1_000_000, ());
        assert_eq!(window.places.len(), 1);
    }
}
