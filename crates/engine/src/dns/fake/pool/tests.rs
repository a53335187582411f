use proptest::prelude::*;

use super::*;

/// The pool, written without any thought for speed: names by number, oldest first, with their pins.
#[derive(Default)]
struct Model {
    order: Vec<(u32, String, u32)>,
}

impl Model {
    fn at(&self, name: &str) -> Option<usize> {
        self.order.iter().position(|(_, other, _)| other == name)
    }

    fn of(&self, number: u32) -> Option<usize> {
        self.order.iter().position(|(other, ..)| *other == number)
    }

    fn touch(&mut self, place: usize) -> u32 {
        let entry = self.order.remove(place);
        self.order.push(entry);
        self.order[self.order.len() - 1].0
    }

    fn place(&mut self, name: &str, capacity: u32) -> Option<u32> {
        if let Some(place) = self.at(name) {
            return Some(self.touch(place));
        }
        let free = (0..capacity).find(|number| self.of(*number).is_none());
        let number = match free {
            Some(number) => number,
            None => {
                let oldest = self.order.iter().position(|(.., pins)| *pins == 0)?;
                self.order.remove(oldest).0
            }
        };
        self.order.push((number, name.to_owned(), 0));
        Some(number)
    }
}

#[derive(Debug, Clone)]
enum Step {
    Ask(u8),
    Connect(u32),
    End(u32),
    Flush,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..24u8).prop_map(Step::Ask),
        4 => (0..12u32).prop_map(Step::Connect),
        3 => (0..12u32).prop_map(Step::End),
        1 => Just(Step::Flush),
    ]
}

/// The numbers that the pool hands out after a flush differ in order alone.
fn number(place: PoolSlot) -> Option<u32> {
    match place {
        PoolSlot::Known(number) | PoolSlot::New(number) => Some(number),
        PoolSlot::Full => None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn it_does_what_a_naive_pool_does(capacity in 1..10u32, steps in proptest::collection::vec(step(), 0..300)) {
        let (mut pool, mut model) = (Pool::new(capacity), Model::default());
        for step in steps {
            match step {
                Step::Ask(name) => {
                    let name = format!("{name}.test");
                    let is_known = model.at(&name).is_some();
                    let is_full = model.order.len() == capacity as usize;
                    let wanted = model.place(&name, capacity);
                    let place = pool.place(&name);
                    prop_assert_eq!(matches!(place, PoolSlot::Known(_)), is_known);
                    match (wanted, number(place)) {
                        (Some(wanted), Some(got)) if is_known || is_full => prop_assert_eq!(wanted, got),
                        (Some(wanted), Some(got)) => {
                            // Any free number will do: the model takes the same one.
                            prop_assert!(got < capacity && (model.of(got).is_none() || got == wanted));
                            model.order.last_mut().unwrap().0 = got;
                        }
                        (wanted, got) => prop_assert_eq!(wanted, got),
                    }
                }
                Step::Connect(number) => {
                    let wanted = model.of(number).map(|place| {
                        model.order[place].2 += 1;
                        model.order[place].1.clone()
                    });
                    prop_assert_eq!(pool.pin(number).map(str::to_owned), wanted);
                }
                Step::End(number) => {
                    if let Some(place) = model.of(number).filter(|place| model.order[*place].2 > 0) {
                        model.order[place].2 -= 1;
                        // The end of a flow is a use, where it was the last one.
                        if model.order[place].2 == 0 {
                            model.touch(place);
                        }
                    }
                    pool.unpin(number);
                }
                Step::Flush => {
                    model.order.retain(|(.., pins)| *pins > 0);
                    pool.flush();
                }
            }
            prop_assert_eq!(pool.len(), model.order.len());
            let text: usize = model.order.iter().map(|(_, name, _)| name.len()).sum();
            prop_assert_eq!(pool.text_len(), text);
            let idle: Vec<(u32, &str)> =
                model.order.iter().filter(|(.., pins)| *pins == 0).map(|(n, name, _)| (*n, &**name)).collect();
            let entries: Vec<(u32, &str)> = pool.entries().collect();
            prop_assert_eq!(&entries[..idle.len()], &*idle, "the order in which they make room");
            for (number, name, _) in &model.order {
                prop_assert_eq!(pool.find(name), Some(*number));
            }
        }
    }

    #[test]
    fn what_is_written_is_loaded_again(
        capacity in 1..10u32,
        entries in proptest::collection::vec((0..12u32, 0..12u8), 0..40),
    ) {
        let entries: Vec<(u32, String)> = entries.into_iter().map(|(n, name)| (n, format!("{name}.test"))).collect();
        let mut model: Vec<(u32, &str)> = Vec::new();
        for (number, name) in entries.iter().filter(|(number, _)| *number < capacity) {
            model.retain(|(n, other)| n != number && other != name);
            model.push((*number, name));
        }
        let borrowed = || entries.iter().map(|(number, name)| (*number, &**name));
        let mut pool = Pool::load(capacity, borrowed());
        prop_assert_eq!(pool.entries().collect::<Vec<_>>(), model.clone());
        // Every free number is handed out once, and then the oldest name goes.
        let free = capacity as usize - model.len();
        let mut taken: Vec<u32> = model.iter().map(|(number, _)| *number).collect();
        for n in 0..free {
            let PoolSlot::New(number) = pool.place(&format!("new{n}.test")) else { panic!("known") };
            prop_assert!(!taken.contains(&number) && number < capacity);
            taken.push(number);
        }
        let oldest = pool.entries().next().unwrap().0;
        prop_assert_eq!(pool.place("last.test"), PoolSlot::New(oldest));
    }
}

#[test]
fn a_flow_keeps_its_name() {
    let mut pool = Pool::new(2);
    assert_eq!((pool.place("a"), pool.place("b")), (PoolSlot::New(0), PoolSlot::New(1)));
    assert_eq!([0, 0, 2].map(|number| pool.pin(number).is_some()), [true, true, false]);
    assert_eq!(pool.place("c"), PoolSlot::New(1), "b was used later, but nobody holds it");
    assert_eq!(pool.pin(1), Some("c"));
    assert_eq!(pool.place("d"), PoolSlot::Full);
    pool.unpin(0);
    assert_eq!(pool.place("d"), PoolSlot::Full, "one of its two flows is left");
    pool.unpin(0);
    assert_eq!(pool.place("d"), PoolSlot::New(0));
    assert_eq!(pool.name(0), Some("d"));
    pool.flush();
    assert_eq!(pool.name(0), None);
    assert_eq!(pool.name(1), Some("c"));
    assert_eq!(pool.len(), 1);
}
